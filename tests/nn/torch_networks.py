"""The networks of configs/networks as PyTorch modules, with the same names and order of parameters.

`make(name, act)` builds one; `act` makes an activation module. Sizes come from the weights it is loaded with
or from the arguments. Written from the architectures' papers, for comparisons only.
"""

import functools

import torch
from torch import nn
from torch_transformers import CausalTransformer, TransformerPtb, VisionTransformer, Vit

relu = functools.partial(nn.ReLU, inplace=True)


class GroupNorm(nn.GroupNorm):
    """In float32, as autocast computes it on GPUs; on CPUs it fails at bfloat16."""

    def forward(self, x):
        return super().forward(x.to(self.weight.dtype))


class BasicBlock(nn.Module):
    def __init__(self, inputs, filters, stride, act, norm):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, filters, 3, stride, 1, bias=False)
        self.bn1 = norm(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.bn2 = norm(filters)
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != filters:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, filters, 1, stride, bias=False), norm(filters))
        self.act1, self.act2 = act(), act()

    def forward(self, x):
        y = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        y += self.downsample(x)
        return self.act2(y)


class CifarResNet(nn.Module):
    def __init__(self, n, act, norm=nn.BatchNorm2d):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = norm(16)
        self.act1 = act()
        inputs = 16
        for i, filters in enumerate([16, 32, 64], 1):
            blocks = []
            for j in range(n):
                blocks.append(BasicBlock(inputs, filters, 2 if i > 1 and j == 0 else 1, act, norm))
                inputs = filters
            setattr(self, f"layer{i}", nn.Sequential(*blocks))
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = self.act1(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


def conv3_bn(inputs, filters, act):
    layer = nn.Sequential()
    layer.add_module("conv", nn.Conv2d(inputs, filters, 3, 1, 1, bias=False))
    layer.add_module("bn", nn.BatchNorm2d(filters))
    layer.add_module("act", act())
    return layer


class PageResidual(nn.Module):
    def __init__(self, filters, act):
        super().__init__()
        self.res1 = conv3_bn(filters, filters, act)
        self.res2 = conv3_bn(filters, filters, act)

    def forward(self, x):
        return x + self.res2(self.res1(x))


class ResNet9(nn.Module):
    """Of David Page's DAWNBench entry for CIFAR-10, without whitening."""

    def __init__(self, act, width=32):
        super().__init__()
        self.prep = conv3_bn(3, width, act)
        self.layer1 = conv3_bn(width, 2 * width, act)
        self.residual1 = PageResidual(2 * width, act)
        self.layer2 = conv3_bn(2 * width, 4 * width, act)
        self.layer3 = conv3_bn(4 * width, 8 * width, act)
        self.residual3 = PageResidual(8 * width, act)
        self.fc = nn.Linear(8 * width, 10, bias=False)

    def forward(self, x):
        pool = nn.functional.max_pool2d
        x = self.residual1(pool(self.layer1(self.prep(x)), 2))
        x = self.residual3(pool(self.layer3(pool(self.layer2(x), 2)), 2))
        return 0.125 * self.fc(x.amax((2, 3)))


class Bottleneck(nn.Module):
    def __init__(self, inputs, filters, stride, act):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, filters, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.conv3 = nn.Conv2d(filters, 4 * filters, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * filters)
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != 4 * filters:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, 4 * filters, 1, stride, bias=False),
                                            nn.BatchNorm2d(4 * filters))
        self.act1, self.act2, self.act3 = act(), act(), act()

    def forward(self, x):
        y = self.act2(self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x))))))
        y = self.bn3(self.conv3(y))
        y += self.downsample(x)
        return self.act3(y)


class ResNet(nn.Module):
    def __init__(self, counts, act):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.act1 = act()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = 64
        for i, count in enumerate(counts):
            blocks = []
            for j in range(count):
                blocks.append(Bottleneck(inputs, 64 << i, 2 if i > 0 and j == 0 else 1, act))
                inputs = 256 << i
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(2048, 1000)

    def forward(self, x):
        x = self.maxpool(self.act1(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class AlexNet(nn.Sequential):
    def __init__(self, act, features=9216):
        def lrn():
            return nn.LocalResponseNorm(5, 1e-4, 0.75, 1.0)
        layers = {
            "conv1": nn.Conv2d(3, 96, 11, 4),
            "act1": act(),
            "norm1": lrn(),
            "pool1": nn.MaxPool2d(3, 2),
            "conv2": nn.Conv2d(96, 256, 5, 1, 2),
            "act2": act(),
            "norm2": lrn(),
            "pool2": nn.MaxPool2d(3, 2),
            "conv3": nn.Conv2d(256, 384, 3, 1, 1),
            "act3": act(),
            "conv4": nn.Conv2d(384, 384, 3, 1, 1),
            "act4": act(),
            "conv5": nn.Conv2d(384, 256, 3, 1, 1),
            "act5": act(),
            "pool5": nn.MaxPool2d(3, 2),
            "flatten": nn.Flatten(),
            "fc6": nn.Linear(features, 4096),
            "act6": act(),
            "drop6": nn.Dropout(0.5),
            "fc7": nn.Linear(4096, 4096),
            "act7": act(),
            "drop7": nn.Dropout(0.5),
            "fc8": nn.Linear(4096, 1000),
        }
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)


class Vgg19(nn.Module):
    def __init__(self, act, features=25088):
        super().__init__()
        layers, inputs = [], 3
        for filters, count in [(64, 2), (128, 2), (256, 4), (512, 4), (512, 4)]:
            for _ in range(count):
                layers += [nn.Conv2d(inputs, filters, 3, 1, 1), act()]
                inputs = filters
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(features, 4096),
            act(),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            act(),
            nn.Dropout(),
            nn.Linear(4096, 1000),
        )

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def conv_bn(inputs, filters, kernel, act, stride=1):
    layer = nn.Sequential()
    layer.add_module("conv", nn.Conv2d(inputs, filters, kernel, stride, kernel // 2, bias=False))
    layer.add_module("bn", nn.BatchNorm2d(filters))
    layer.add_module("act", act())
    return layer


class Inception(nn.Module):
    def __init__(self, inputs, one, reduce, three, reduce_double, double, project, act, pool=None):
        super().__init__()
        stride = 1 if one else 2
        if one:
            self.one = conv_bn(inputs, one, 1, act)
        self.reduce = conv_bn(inputs, reduce, 1, act)
        self.three = conv_bn(reduce, three, 3, act, stride)
        self.reduce_double = conv_bn(inputs, reduce_double, 1, act)
        self.double1 = conv_bn(reduce_double, double, 3, act)
        self.double2 = conv_bn(double, double, 3, act, stride)
        if one:
            self.pool = nn.MaxPool2d(3, 1, 1) if pool == "max" else nn.AvgPool2d(3, 1, 1)
            self.project = conv_bn(inputs, project, 1, act)
        else:
            self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.outputs = one + three + double + (project or inputs)

    def forward(self, x):
        towers = [self.three(self.reduce(x)), self.double2(self.double1(self.reduce_double(x)))]
        if hasattr(self, "one"):
            towers = [self.one(x)] + towers + [self.project(self.pool(x))]
        else:
            towers.append(self.pool(x))
        return torch.cat(towers, 1)


class BnInception(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.conv1 = conv_bn(3, 64, 7, act, 2)
        self.conv2_reduce = conv_bn(64, 64, 1, act)
        self.conv2 = conv_bn(64, 192, 3, act)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        inputs = 192
        self.blocks = []
        for name, *sizes in [
            ("3a", 64, 64, 64, 64, 96, 32),
            ("3b", 64, 64, 96, 64, 96, 64),
            ("3c", 0, 128, 160, 64, 96, 0),
            ("4a", 224, 64, 96, 96, 128, 128),
            ("4b", 192, 96, 128, 96, 128, 128),
            ("4c", 160, 128, 160, 128, 160, 128),
            ("4d", 96, 128, 192, 160, 192, 128),
            ("4e", 0, 128, 192, 192, 256, 0),
            ("5a", 352, 192, 320, 160, 224, 128),
            ("5b", 352, 192, 320, 192, 224, 128),
        ]:
            block = Inception(inputs, *sizes, act, "max" if name == "5b" else None)
            self.add_module("inception" + name, block)
            self.blocks.append("inception" + name)
            inputs = block.outputs
        self.fc = nn.Linear(inputs, 1000)

    def forward(self, x):
        x = self.pool(self.conv2(self.conv2_reduce(self.pool(self.conv1(x)))))
        for name in self.blocks:
            x = getattr(self, name)(x)
        return self.fc(x.mean((2, 3)))


class DenseLayer(nn.Module):
    def __init__(self, inputs, act):
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.act = act()
        self.conv = nn.Conv2d(inputs, 12, 3, 1, 1, bias=False)

    def forward(self, x):
        return torch.cat([x, self.conv(self.act(self.bn(x)))], 1)


class Transition(nn.Module):
    def __init__(self, inputs, act):
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.act = act()
        self.conv = nn.Conv2d(inputs, inputs, 1, bias=False)
        self.pool = nn.AvgPool2d(2)

    def forward(self, x):
        return self.pool(self.conv(self.act(self.bn(x))))


class DenseNet(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        channels = 16
        for i in range(1, 4):
            setattr(
                self, f"block{i}", nn.Sequential(*[DenseLayer(channels + 12 * j, act) for j in range(12)])
            )
            channels += 144
            if i < 3:
                setattr(self, f"trans{i}", Transition(channels, act))
        self.bn = nn.BatchNorm2d(channels)
        self.act = act()
        self.fc = nn.Linear(channels, 10)

    def forward(self, x):
        x = self.trans2(self.block2(self.trans1(self.block1(self.conv1(x)))))
        return self.fc(self.act(self.bn(self.block3(x))).mean((2, 3)))


class WideBlock(nn.Module):
    def __init__(self, inputs, filters, stride, act):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.act1 = act()
        self.conv1 = nn.Conv2d(inputs, filters, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.act2 = act()
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.shortcut = None
        if stride != 1 or inputs != filters:
            self.shortcut = nn.Conv2d(inputs, filters, 1, stride, bias=False)

    def forward(self, x):
        y = self.act1(self.bn1(x))
        z = self.conv2(self.act2(self.bn2(self.conv1(y))))
        return z + (x if self.shortcut is None else self.shortcut(y))


class WideResNet(nn.Module):
    def __init__(self, act, n=4, k=12):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        inputs = 16
        for i in range(3):
            blocks = []
            for j in range(n):
                blocks.append(WideBlock(inputs, (16 << i) * k, 2 if i > 0 and j == 0 else 1, act))
                inputs = (16 << i) * k
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.bn = nn.BatchNorm2d(inputs)
        self.act = act()
        self.fc = nn.Linear(inputs, 10)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return self.fc(self.act(self.bn(x)).mean((2, 3)))


class Logistic(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3072, 10)

    def forward(self, x):
        return self.fc(x.flatten(1))


def recurrent(model, name, x, lengths, states):
    """The outputs of an LSTM layer. `states`: by layers' names, (h, c) that they start from; what they end in
    is put there."""
    lstm = getattr(model, name)
    if lengths is None:
        return lstm(x)[0]
    states = {} if states is None else states
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out, states[name] = lstm(packed, states.get(name))
    return nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[0]


class LstmAn4(nn.Module):
    def __init__(self):
        super().__init__()
        for i, features in enumerate([363, 512, 512], 1):
            setattr(self, f"lstm{i}", nn.LSTM(features, 1024, proj_size=512, batch_first=True))
        self.fc = nn.Linear(512, 132)

    def forward(self, x, lengths=None, states=None):
        for i in range(1, 4):
            x = recurrent(self, f"lstm{i}", x, lengths, states)
        return self.fc(x)


class LanguageModel(nn.Module):
    def __init__(self, dropout=0.4):
        super().__init__()
        self.encoder = nn.Embedding(33278, 650)
        for i in range(1, 4):
            setattr(self, f"lstm{i}", nn.LSTM(650, 650, batch_first=True))
        self.decoder = nn.Linear(650, 33278)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, lengths=None, states=None):
        x = self.drop(self.encoder(x.long()))
        for i in range(1, 4):
            x = self.drop(recurrent(self, f"lstm{i}", x, lengths, states))
        return self.decoder(x)


def make(name, act=relu, dropout=True, features=None):
    """`features`: of the flattened image, where the input is not the file's own."""
    sizes = {} if features is None else {"features": features}
    model = {
        "resnet20": lambda: CifarResNet(3, act),
        "resnet20_gn": lambda: CifarResNet(3, act, functools.partial(GroupNorm, 8)),
        "resnet110": lambda: CifarResNet(18, act),
        "resnet9": lambda: ResNet9(act),
        "resnet50": lambda: ResNet((3, 4, 6, 3), act),
        "resnet152": lambda: ResNet((3, 8, 36, 3), act),
        "alexnet": lambda: AlexNet(act, **sizes),
        "vgg19": lambda: Vgg19(act, **sizes),
        "bn_inception": lambda: BnInception(act),
        "densenet40_12": lambda: DenseNet(act),
        "wideresnet28_12": lambda: WideResNet(act),
        "logistic": Logistic,
        "lstm_an4": LstmAn4,
        "lstm_wikitext2": LanguageModel,
        "transformer_ptb": TransformerPtb,
        "vit_cifar": lambda: Vit(6, 192, 3, 32, 4, 10),
        "vit_b_16": lambda: Vit(12, 768, 12, 224, 16, 1000),
        "vision_transformer": VisionTransformer,
        "causal_transformer": CausalTransformer,
    }[name]()
    if not dropout:
        for layer in model.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
    return model
