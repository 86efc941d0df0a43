"""Where data sets come from and on what terms, for the cards of models that learnt from them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Terms:
    """A data set.

    Attributes:
        title: its name, with the year.
        source: where it comes from.
        terms: its licence, or what is known instead.
    """

    title: str
    source: str
    terms: str


TERMS = {
    "cifar10": Terms(
        "CIFAR-10 (Krizhevsky, 2009)",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "No licence is stated; its page asks to cite *Learning Multiple Layers of Features from Tiny Images* "
        "(Krizhevsky, 2009). The photographs were gathered from the web for 80 Million Tiny Images, which "
        "its authors withdrew in 2020; rights in them are with their makers",
    ),
    "cifar100": Terms(
        "CIFAR-100 (Krizhevsky, 2009)",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "As CIFAR-10: no licence is stated; its page asks to cite *Learning Multiple Layers of Features from "
        "Tiny Images* (Krizhevsky, 2009)",
    ),
    "digits": Terms(
        "Optical Recognition of Handwritten Digits (Alpaydin and Kaynak, 1998), as in scikit-learn",
        "https://archive.ics.uci.edu/dataset/80",
        "CC BY 4.0",
    ),
    "pets": Terms(
        "Oxford-IIIT Pet (Parkhi et al., 2012)",
        "https://www.robots.ox.ac.uk/~vgg/data/pets/",
        "CC BY-SA 4.0; rights in the photographs are with their makers",
    ),
    "tiny-imagenet": Terms(
        "Tiny-ImageNet (Stanford CS231n, 2015)",
        "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "No licence of its own; a part of ImageNet, whose terms allow non-commercial research and education",
    ),
}
