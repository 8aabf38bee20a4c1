"""How long a configuration trains: its epochs, and the steps of each."""

import configuration
import published
from configuration import section

# Training samples of data sets whose size is fixed: docs/data.md.
SAMPLES = {"cifar100": 50_000, "mnist": 60_000, "fashion_mnist": 60_000, **published.train_samples()}


def epochs(settings):
    count = section(settings, "train").get("epochs", 1)
    return count if isinstance(count, int) else 1


def samples(settings):
    """Of an epoch, or None where the number is not known before the data is read, or how it is cut."""
    data = section(settings, "data")
    if data.get("truncate"):
        return None
    known = SAMPLES.get(data.get("dataset"))
    asked = data.get("train_samples") if isinstance(data.get("train_samples"), int) else 0
    return min(asked, known) if asked and known else asked or known or None


def steps_per_epoch(settings, ranks):
    count, batch = samples(settings), configuration.batch_size(settings, ranks)
    return count // batch if count and batch else None
