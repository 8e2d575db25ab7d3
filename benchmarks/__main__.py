"""``make bench``: every benchmark in turn; those that need data say how to get it."""

import os
import sys

from benchmarks import efficiency, language_modelling, mean_field, mixture, redundancy


def main() -> int:
    mixture.main([])
    efficiency.main([])
    print("\nMean field of the dependency CRF against exact inference")
    mean_field.main([])
    print(
        "\nPerplexities of the runs that are there (python -m benchmarks.language_modelling makes the others, in hours)"
    )
    language_modelling.main(["--table"])
    if not os.environ.get("PROBTX_DATA"):
        print(
            "\nredundancy, segmentation: skipped; set PROBTX_DATA to the folder that holds tinyshakespeare/ and segmentation/"
        )
        return 0
    from benchmarks import segmentation

    redundancy.main([])
    segmentation.main([])
    return 0


if __name__ == "__main__":
    sys.exit(main())
