"""A configuration's settings in a few words."""


def section(config, key):
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def codec_text(codec):
    """A codec in a few words: its kind, its bits, its bucket."""
    if not isinstance(codec, dict):
        return str(codec or "none")
    kind = str(codec.get("kind", "none"))
    text = kind
    if "bits" in codec:
        text += f" {codec['bits']} bit"
    if "density" in codec:
        text += f" {codec['density']:g}"
    for key, usual in (("levels", "sign_magnitude"), ("norm", "max"), ("type", "dynamic_tree")):
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
