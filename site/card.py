"""The picture that a shared link shows, ``site/static/card.png``: the README's figure under the library's name."""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.image import imread

SITE = Path(__file__).resolve().parent


def main() -> None:
    """Draw it, 1200 x 630 pixels."""
    figure = plt.figure(figsize=(12, 6.3), dpi=100, facecolor="white")
    figure.text(0.05, 0.87, "probtx_pyro", fontsize=46, weight="bold", color="#222222")
    figure.text(0.05, 0.785, "Attention is a posterior: transformers as Pyro programs", fontsize=22, color="#005b8f")
    axes = figure.add_axes((0.04, 0.02, 0.92, 0.72))
    axes.imshow(imread(SITE.parent / "docs/figures/readme.png"))
    axes.axis("off")
    figure.savefig(SITE / "static/card.png", dpi=100)


if __name__ == "__main__":
    main()
