"""What the user is told of a module that was imported."""

from torch import nn


def few(names):
    """The first of the names, and how many more there are."""
    most = 3
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def lines(module, network):
    out = list(network.notes)
    used = {*network.origins.values(), *network.implied}
    state = module.state_dict(keep_vars=True)
    used_tensors = {id(state[name]) for name in used if name in state}  # some have several names
    unused = [n for n, one in state.items() if id(one) not in used_tensors and not n.endswith("num_batches_tracked")]
    if unused:
        out.append(f"left out, because the scores do not depend on it: {few(unused)}")
    frozen, rest = _without_gradient(module, network)
    trained = any(p.requires_grad for p in module.parameters() if id(p) in used_tensors)
    is_all = frozen and not rest and not trained
    if is_all:
        out.append("no parameter needs a gradient in PyTorch; lpsgd trains one layer at least")
        frozen = frozen[:-1]
    if frozen and is_all:
        out.append(f"--set 'train.freeze=[{', '.join(frozen)}]' freezes all but the last")
    elif frozen:
        out.append(f"need no gradient in PyTorch: --set 'train.freeze=[{', '.join(frozen)}]' freezes them")
    if rest:
        out.append(f"need no gradient in PyTorch, but are trained here: {few(rest)}")
    return out


def _without_gradient(module, network):
    """The layers in front, up to the first that is trained, whose parameters need none; and all other such
    parameters."""
    tensors = {name: network.tensor_of(module, name) for name in network.origins}
    fixed = {layer.name for layer in network.layers if not layer.keys.get("trained", True)}
    needs = {
        name: tensor.requires_grad
        for name, tensor in tensors.items()
        if isinstance(tensor, nn.Parameter) and name.rpartition(".")[0] not in fixed
    }
    shared = {layer.keys.get("weight_of") for layer in network.layers}  # lpsgd freezes none of them
    frozen = []
    for layer in network.layers:
        own = [need for name, need in needs.items() if name.rpartition(".")[0] == layer.name]
        if any(own) or layer.name in shared:
            break
        if own:
            frozen.append(layer.name)
    rest = [name for name, need in needs.items() if not need and name.rpartition(".")[0] not in frozen]
    return frozen, rest
