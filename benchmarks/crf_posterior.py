"""How far mean field of a dependency CRF is from log Z at the length of sentences, and what Gibbs sweeps cost.

python -m benchmarks.crf_posterior
"""

import time

import torch

from probtx_pyro import inference, models

SENTENCES = {
    20: (17, 2, 1.0),
    30: (17, 4, 1.0),
    40: (32, 8, 0.5),
}  # words: labels, channels, scale of the ternary potentials
SEED, CHAINS = 0, 64


def sentence(words: int) -> models.DependencyCRF:
    labels, channels, scale = SENTENCES[words]
    g = torch.Generator().manual_seed(SEED)
    unary, ternary = torch.randn(words, labels, generator=g), torch.randn(channels, 8, labels, labels, generator=g)
    return models.DependencyCRF(unary, scale * ternary, distances=(2, 3, 4))


def log_partitions() -> None:
    print("words | ELBO | log Z, 100 temperatures | effective chains | log Z, 400 | downwards from Gibbs draws, 100")
    for words in SENTENCES:
        crf = sentence(words)
        elbo = max(float(crf.mean_field(200, schedule, tol=1e-6).elbo) for schedule in ("asynchronous", "sequential"))
        few, many = (inference.annealed_log_partition(crf, num_temperatures=n, seed=SEED) for n in (100, 400))
        draws = inference.gibbs(crf, num_samples=1, num_chains=CHAINS, num_warmup=300, seed=SEED)
        down = inference.annealed_log_partition(crf, seed=SEED, exact={"label": draws.samples["label"][:, 0]})
        said = [f"{float(x.log_partition):.2f} ± {float(x.standard_error):.2f}" for x in (few, many, down)]
        print(
            f"{words} | {elbo:.1f} | {said[0]} | {float(few.effective_chains):.0f} | {said[1]} | {said[2]}", flush=True
        )


def sweeps(words: int = 40, number: int = 20) -> None:
    latents, g = sentence(words).latents((None, None, None)), torch.Generator().manual_seed(SEED)
    state = latents.sweep(latents.start(CHAINS, g), g)
    times = []
    for _ in range(number):
        begun = time.perf_counter()
        state = latents.sweep(state, g)
        times.append(time.perf_counter() - begun)
    times.sort()
    print(f"a sweep of {CHAINS} chains over {words} words: median {times[number // 2]:.3f} s, least {times[0]:.3f} s")


if __name__ == "__main__":
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32, seed {SEED}")
    sweeps()
    log_partitions()
