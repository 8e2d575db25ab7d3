"""``make bench``: every benchmark in turn; those that need data say how to get it."""

import os
import sys

from benchmarks import (
    agreement,
    calibration,
    dependency_crf,
    efficiency,
    how_many_keys,
    language_modelling,
    long_range,
    mean_field,
    memory,
    mixture,
    posterior,
    redundancy,
    retrieval,
    sinks,
    soft_kmeans,
    staircase,
    tasks,
    wind_tunnels,
)


def main() -> int:
    mixture.main([])
    efficiency.main([])
    print("\nMean field of the dependency CRF against exact inference")
    mean_field.main([])
    print("\nMean field of the dependency CRF beside its own GEMMs, plain einsum and a transformer")
    dependency_crf.main([])
    print("\nSoft k-means beside scikit-learn's KMeans and GaussianMixture")
    soft_kmeans.main([])
    print("\nSmallest effective sample size per second: Gibbs, Pyro NUTS, NumPyro NUTS")
    posterior.main([])
    print("\nDo NUTS and Gibbs draw from the same posterior")
    agreement.main([])
    print("\nSimulation-based calibration of Gibbs and of NUTS (the latter takes an hour)")
    calibration.main([])
    print(
        "\nMemories and published layers: the tables of docs/reports/memory.md (python -m benchmarks.memory measures anew)"
    )
    memory.main(["--table"])
    print(
        "\nPerplexities of the runs that are there (python -m benchmarks.language_modelling makes the others, in hours)"
    )
    language_modelling.main(["--table"])
    print(
        "\nWhich layer computes a posterior: one seed, few steps (python -m benchmarks.wind_tunnels makes the others, in hours)"
    )
    wind_tunnels.main(["--quick"])
    print("\nHow many keys a unit wants: four planted problems (python -m benchmarks.how_many_keys has the others)")
    how_many_keys.main(["--quick"])
    print("\nTasks on words, the runs that are there (python -m benchmarks.tasks makes the others)")
    tasks.main(["--table"])
    if not os.environ.get("PROBTX_DATA"):
        print(
            "\nSeven edits, sinks, ListOps, redundancy, retrieval, segmentation: skipped; set PROBTX_DATA to the folder that holds ud_english_ewt/, listops/, tinyshakespeare/, fashion_mnist_900/ and segmentation/"
        )
        return 0
    from benchmarks import segmentation

    print(
        "\nFrom the dependency CRF to a transformer: one seed, few steps (python -m benchmarks.staircase makes the others, in a day)"
    )
    staircase.main(["--quick"])
    print("\nSinks in training: one seed, few steps (python -m benchmarks.sinks makes the others, in hours)")
    sinks.main(["--quick"])
    print("\nListOps, the runs that are there (python -m benchmarks.long_range makes the others)")
    long_range.main(["--table"])
    redundancy.main([])
    print("\nRetrieval of corrupted images, capacity against D, steps until nothing moves")
    retrieval.main([])
    segmentation.main([])
    return 0


if __name__ == "__main__":
    sys.exit(main())
