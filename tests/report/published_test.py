"""report/published against the paper, whose numbers were written down here once more, in its own layout."""

import unittest

import harness  # noqa: F401

import published

GPUS = (1, 2, 4, 8, 16)
# Tables 10 and 11 in part: network, primitive, codec, samples/s on 1, 2, 4, 8 and 16 GPUs.
SAMPLES_PER_S = """
alexnet      mpi  none           240.8 301.45  328.0  272.9  192.1
alexnet      mpi  onebit64           -  370.8  476.5  761.2  712.7
alexnet      mpi  onebit_column      - 424.05  564.3  971.1  849.4
alexnet      mpi  qsgd16             -  388.8  508.8  500.9  335.6
alexnet      mpi  qsgd2              -  449.2 609.15 1076.5  889.8
alexnet      mpi  qsgd4              -  466.5  598.7  964.9  748.5
alexnet      mpi  qsgd8              -  424.9  544.6  739.1  535.0
alexnet      nccl none           240.8  458.2  625.0 1138.3      -
alexnet      nccl qsgd16             -  462.8  632.1 1157.6      -
alexnet      nccl qsgd2              -  471.0  661.6 1229.7      -
alexnet      nccl qsgd4              -  471.9  659.4 1247.7      -
alexnet      nccl qsgd8              -  458.4  641.8 1214.8      -
bn_inception mpi  none            88.3  164.8 316.75 473.75  500.4
bn_inception nccl none            88.3      -      -      -      -
resnet110    mpi  none           343.7  555.0  957.7 1229.1  831.6
resnet152    mpi  none            16.9   26.1   45.0   73.9  113.5
resnet152    nccl none            16.9      -      -      -      -
resnet50     mpi  none            47.2   80.8  142.4  247.9  272.3
resnet50     mpi  onebit_column      -   45.1   81.7 160.15  155.2
resnet50     mpi  qsgd8              -   92.6  162.7  313.7  416.8
resnet50     nccl none            47.2   93.8  164.8  291.1      -
vgg19        mpi  none            12.4   20.4   36.3  53.95   40.6
vgg19        nccl none            12.4   24.9   48.7  163.1      -
"""
BATCHES = """
alexnet       256  256  256  256  256
bn_inception   64  128  256  256  256
vgg19          32   64  128  128  128
resnet50       32   64  128  256  256
resnet152      16   32   64  128  256
resnet110     128  128  128  128  128
"""
# Top-1 in percent at three epochs.
ACCURACY = """
resnet110     80 128 160
none          87.09 93.65 93.86
qsgd8         86.92 93.97 94.19
qsgd4         87.77 93.52 93.76
qsgd2         85.77 92.59 92.64
onebit_column 87.13 94.02 94.15
alexnet       56 89 112
none          - - 59.90
qsgd8         59.63 60.36 60.37
qsgd4         59.20 59.97 60.05
qsgd2         57.09 58.09 58.17
onebit_column 59.57 60.23 60.31
onebit64      59.26 59.92 59.99
onebit512     58.44 59.25 59.29
resnet50      60 96 120
none          70.75 74.60 74.68
qsgd8         70.66 75.07 75.19
qsgd4         70.66 74.62 74.76
onebit64      70.78 74.93 75.02
resnet152     60 96 120
none          - - 77.00
qsgd8         - - 76.74
"""
# Data, training samples, epochs, top-1 at full precision.
NETWORKS = """
alexnet   imagenet 1281167 112 59.90
resnet50  imagenet 1281167 120 74.68
resnet110 cifar10  50000   160 93.86
resnet152 imagenet 1281167 120 77.00
"""
# Instance, GPUs, TFLOP/s a GPU, dollars an hour.
MACHINES = """
ec2_k80   p2.xlarge    1 8.73  0.9
ec2_k80   p2.8xlarge   8 8.73  7.2
ec2_k80   p2.16xlarge 16 8.73 14.4
dgx1_p100 DGX-1        8 10.6 50
"""


def words(text):
    return [line.split() for line in text.strip().splitlines()]


class Published(unittest.TestCase):
    def test_samples_per_s(self):
        batches = {network: dict(zip(GPUS, map(int, rest))) for network, *rest in words(BATCHES)}
        expected = {}
        for network, transport, codec, *rates in words(SAMPLES_PER_S):
            for ranks, rate in zip(GPUS, rates):
                if rate != "-":
                    expected[network, transport, codec, ranks] = batches[network][ranks], float(rate)
        rows = published.table("samples_per_s")
        found = {
            (r["network"], r["transport"], r["codec"], int(r["ranks"])): (
                int(r["batch"]),
                float(r["samples_per_s"]),
            )
            for r in rows
        }
        self.assertEqual(found, expected)
        self.assertEqual((len(rows), {row["machine"] for row in rows}), (88, {"ec2_k80"}))

    def test_accuracy(self):
        expected, network, epochs = {}, "", []
        for name, *values in words(ACCURACY):
            if all(value.isdigit() for value in values):
                network, epochs = name, [int(value) for value in values]
                continue
            points = [(epoch, float(value)) for epoch, value in zip(epochs, values) if value != "-"]
            expected.setdefault(network, {})[name] = points
        networks = dict.fromkeys(row["network"] for row in published.table("accuracy"))
        self.assertEqual({network: published.accuracy(network) for network in networks}, expected)

    def test_networks(self):
        found = [
            [r["network"], r["data"], int(r["train_samples"]), int(r["epochs"]), float(r["top1"])]
            for r in published.table("networks")
        ]
        self.assertEqual(found, [[n, d, int(s), int(e), float(t)] for n, d, s, e, t in words(NETWORKS)])

    def test_machines(self):
        found = [
            [
                r["machine"],
                r["instance"],
                *(float(r[key]) for key in ("gpus", "tflops_per_gpu", "dollars_per_hour")),
            ]
            for r in published.table("machines")
        ]
        self.assertEqual(found, [[m, i, float(g), float(t), float(d)] for m, i, g, t, d in words(MACHINES)])


if __name__ == "__main__":
    unittest.main()
