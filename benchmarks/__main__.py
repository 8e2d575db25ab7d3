"""``make bench``: every benchmark in turn; those that need data say how to get it."""

import os
import sys

from benchmarks import mixture


def main() -> int:
    mixture.main([])
    if not os.environ.get("PROBTX_DATA"):
        print(
            "\nsegmentation: skipped; set PROBTX_DATA to the folder that holds segmentation/images and segmentation/masks"
        )
        return 0
    from benchmarks import segmentation

    segmentation.main([])
    return 0


if __name__ == "__main__":
    sys.exit(main())
