"""Values of a configuration that may be mistaken: what is no map counts as empty."""


def section(config, key):
    """The map at a key."""
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def batch_size(config, ranks):
    """Global; a map names it for each number of ranks. None where the program will refuse it."""
    size = section(config, "train").get("batch_size", 128)
    if isinstance(size, dict):
        size = size.get(ranks, size.get(str(ranks)))
    return size if type(size) is int and size >= 1 else None


def micro_batches(config):
    """Of each rank, in a step."""
    return section(config, "train").get("micro_batches", 1)
