"""A configuration's settings in a few words."""

import warmup
from configuration import section


def counted(count, noun):
    """"1 rank", "2 ranks"."""
    return f"{count} {noun}{'' if str(count) == '1' else 's'}"


def codec_text(codec):
    """A codec in a few words: its kind, its bits, its bucket."""
    if not isinstance(codec, dict):
        return str(codec or "none")
    kind = str(codec.get("kind", "none"))
    text = kind
    if "bits" in codec:
        text += f" {codec['bits']} bit"
    if "density" in codec:
        density = codec["density"]
        text += f" {density:g}" if isinstance(density, (int, float)) else f" {density}"
    if kind == "mx":
        text += f" {codec.get('element', 'e2m1')}"
    usual_words = ("levels", "sign_magnitude"), ("norm", "max"), ("type", "dynamic_tree"), ("rounding", "stochastic")
    for key, usual in usual_words:
        if codec.get(key, usual) != usual:
            text += f" {codec[key]}"
    if codec.get("majority"):
        text += " majority"
    if "bucket" in codec and kind not in ("none", "fp16", "bf16"):
        text += f", bucket {codec['bucket']}"
    usual_feedback = kind in ("onebit", "topk") or (kind == "sign" and not codec.get("majority"))
    if codec.get("error_feedback", usual_feedback) != usual_feedback:
        text += ", error feedback" if codec["error_feedback"] else ", no error feedback"
    return text


def exchange_text(exchange):
    """The codec with the rules that replace it for some tensors, and its warm-up."""
    rules = exchange.get("rules")
    texts = [rule_text(rule) for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []
    text = "; ".join([codec_text(exchange.get("codec")), *texts])
    first = warmup_text(warmup.epochs({"exchange": exchange}))
    return f"{text}, {first}" if first else text


def warmup_text(epochs):
    """Of codecs: "1 epoch as float32"."""
    return f"{counted(f'{epochs:g}', 'epoch')} as float32" if epochs else ""


# Keys whose values change no result and no time.
WITHOUT_EFFECT = (
    "data.root",
    "data.shards",
    "train.seed",
    "exchange.ranks",
    "exchange.timeout",
    "exchange.timeout_outside_step",
    "checkpoint",
    "metrics",
)
# And those that a label need not tell.
UNTOLD = (
    *WITHOUT_EFFECT,
    "data.workers",
    "data.prefetch",
    "data.mean",
    "data.std",
    "train.threads",
    "train.device",
    "exchange.device_pointers",
    "exchange.codec",
    "network",
)
USUAL = {
    "exchange.transport": "mpi",
    "exchange.collective": "reduce_broadcast",
    "exchange.ranks_per_block": "node",
    "exchange.overlap": True,
    "exchange.warmup_epochs": 0,
    "exchange.min_elements": "auto",
    "exchange.rules": [],
    "exchange.link": {},
    "sync": {"kind": "every_step"},
    "train.compute": "fp32",
    "train.batch_size": 128,
    "train.freeze": [],
    "train.label_smoothing": 0,
    "train.micro_batches": 1,
    "optimizer.noise": 0,
    "optimizer.noise_decay": 0.55,
    "schedule.lr_scaling": "none",
}


def labels(configs, ranks, omit=()):
    """For each configuration its codec, and every other setting in which they differ, network first."""
    flats = [flat(config) for config in configs]
    for config, one, count in zip(configs, flats, ranks):
        one["ranks"] = count
        one["exchange.warmup_epochs"] = warmup.epochs(config)
    keys = list(dict.fromkeys(key for one in flats for key in one))
    told = [key for key in keys if not is_of(key, UNTOLD)]
    told.sort(key=lambda key: key == "ranks")  # last
    differ = [key for key in told if key not in omit and len({str(value_of(one, key)) for one in flats}) > 1]
    names = [str(section(config, "network").get("name", "")) for config in configs]
    several = len(set(names)) > 1 and "network" not in omit
    texts = []
    for config, one, name in zip(configs, flats, names):
        codec = codec_text(section(config, "exchange").get("codec"))
        if section(config, "exchange").get("collective") == "simulated":
            codec += " (simulated)"
        parts = [name] if several and name else []
        parts += [codec, *(part for key in differ if (part := setting_text(key, value_of(one, key))))]
        texts.append(", ".join(parts))
    return texts


def is_of(key, names):
    """Whether a key is one of these, or below one."""
    return any(key == name or key.startswith(name + ".") for name in names)


def value_of(one, key):
    return one.get(key, USUAL.get(key))


def flat(config, prefix=""):
    """{"a.b": value}; rules and the codec's options stay together."""
    out = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and path not in (
            "exchange.codec",
            "exchange.link",
            "network",
            "schedule.decay",
            "sync",
        ):
            out.update(flat(value, path + "."))
        else:
            out[path] = value
    return out


def setting_text(key, value):
    """What differs, in the words of a legend; empty where it is the usual."""
    if key == "ranks":
        return counted(value, "rank") if value else ""
    if key == "exchange.collective":
        return "" if value in ("reduce_broadcast", "simulated") else str(value)
    if key == "exchange.ranks_per_block":
        return "" if value == "node" else f"blocks of {counted(value, 'rank')}"
    if key == "exchange.transport":
        return f"over {value}"
    if key == "exchange.codec":
        return codec_text(value)
    if key == "exchange.rules":
        return "; ".join(rule_text(rule) for rule in value or [] if isinstance(rule, dict))
    if key == "exchange.overlap":
        return "" if value else "no overlap"
    if key == "exchange.warmup_epochs":
        return warmup_text(value)
    if key == "exchange.min_elements":
        return "" if value == "auto" else f"from {value} elements"
    if key == "exchange.link":
        return link_text(value)
    if key == "train.batch_size":
        return f"batch {value}"
    if key == "train.compute":
        return str(value)
    if key == "train.freeze":
        return f"{', '.join(map(str, value))} frozen" if value else ""
    if key == "sync":
        return sync_text(value)
    return f"{key.split('.')[-1]} {value}" if value is not None else ""


SYNC_KINDS = {
    "local_sgd": "local SGD",
    "post_local_sgd": "post-local SGD",
    "hierarchical_local_sgd": "hierarchical local SGD",
    "block_momentum": "block momentum",
}
SYNC_USUAL = {
    "warmup": "none",
    "warmup_epochs": 0,
    "reset_momentum": False,
    "nesterov": False,
    "rate": 1,
    "fragments": 1,
    "delay": 0,
    "mix": 0.5,
    "distance": True,
}


def sync_text(sync):
    """When ranks synchronise: "local SGD, H = 8"."""
    if not isinstance(sync, dict):
        return str(sync or "every_step")
    kind = str(sync.get("kind", "every_step"))
    parts = [SYNC_KINDS.get(kind, kind)]
    if "steps" in sync:
        parts.append(f"H = {sync['steps']}")
    if "block_steps" in sync:
        parts[-1] += f" x {sync['block_steps']}"
    for key, value in sync.items():
        if key in ("kind", "steps", "block_steps") or (key in SYNC_USUAL and SYNC_USUAL[key] == value):
            continue
        name = key.replace("_", " ")
        parts.append(name if value is True else f"{name} {value}".replace("_", " "))
    return ", ".join(parts)


def rule_text(rule):
    what = " ".join(str(rule[key]) for key in ("kind", "name") if rule.get(key))
    return f"{what or 'all'}: {codec_text(rule.get('codec'))}"


def link_text(link):
    if not isinstance(link, dict) or not link:
        return ""
    return " ".join(str(link[key]) for key in ("bandwidth", "latency") if key in link)
