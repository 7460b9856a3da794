"""Trains a small convolutional network with Gluon on scikit-learn's digits.

    horoscalerun -np 2 python examples/mxnet_digits_gluon.py

The network's shapes are known only in the first forward pass; its parameters are broadcast then.
"""

import mxnet as mx
import numpy as np
from sklearn.datasets import load_digits

import horoscale.mxnet as hvd

EPOCHS = 12
BATCH = 64


def main() -> None:
    hvd.init()
    mx.random.seed(hvd.rank())  # different weights, until they are broadcast
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images = (images[order] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = labels[order].astype(np.float32)
    train, test = slice(0, 1440), slice(1440, None)
    # Every rank needs the same number of batches, because all take part in each reduction.
    mine_x, mine_y = (
        images[train][hvd.rank() :: hvd.size()],
        labels[train][hvd.rank() :: hvd.size()],
    )
    batch = BATCH // hvd.size()

    network = mx.gluon.nn.HybridSequential()
    network.add(
        mx.gluon.nn.Conv2D(16, kernel_size=3, activation="relu"),
        mx.gluon.nn.MaxPool2D(),
        mx.gluon.nn.Dense(64, activation="relu"),
        mx.gluon.nn.Dense(10),
    )
    network.initialize(mx.init.Xavier())
    network.hybridize()
    hvd.broadcast_parameters(network.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(
        network.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}
    )
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for epoch in range(EPOCHS):
        chosen = np.random.default_rng(epoch).permutation(len(mine_x))
        for first in range(0, len(chosen) - batch + 1, batch):
            now = chosen[first : first + batch]
            with mx.autograd.record():
                loss = loss_of(network(mx.nd.array(mine_x[now])), mx.nd.array(mine_y[now]))
            loss.backward()
            trainer.step(batch)
        mean = hvd.allreduce(loss.mean(), name="loss").asscalar()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {mean:.3f}")
    guesses = network(mx.nd.array(images[test])).asnumpy().argmax(axis=1)
    if hvd.rank() == 0:
        print(f"accuracy {np.mean(guesses == labels[test]):.3f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
