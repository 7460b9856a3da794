"""Trains a small symbolic network with MXNet's Module on scikit-learn's digits.

horoscalerun -np 2 python examples/mxnet_digits_module.py
"""

import mxnet as mx
import numpy as np
from sklearn.datasets import load_digits

import horoscale.mxnet as hvd

EPOCHS = 20
BATCH = 64


def symbol() -> mx.sym.Symbol:
    values = mx.sym.Variable("data")
    values = mx.sym.FullyConnected(values, num_hidden=128, name="hidden")
    values = mx.sym.Activation(values, act_type="relu")
    values = mx.sym.FullyConnected(values, num_hidden=10, name="output")
    return mx.sym.SoftmaxOutput(values, name="softmax")


def main() -> None:
    hvd.init()
    mx.random.seed(hvd.rank())  # different weights, until they are broadcast
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images = (images[order] / 16).astype(np.float32)
    labels = labels[order].astype(np.float32)
    train, test = slice(0, 1440), slice(1440, None)
    batch = BATCH // hvd.size()
    np.random.seed(1)  # for the iterator's order
    # Incomplete batches are omitted, so that every rank has the same number of them.
    batches = mx.io.NDArrayIter(
        images[train][hvd.rank() :: hvd.size()],
        labels[train][hvd.rank() :: hvd.size()],
        batch,
        shuffle=True,
        last_batch_handle="discard",
    )

    module = mx.mod.Module(symbol(), context=mx.cpu())
    module.bind(batches.provide_data, batches.provide_label)
    module.init_params(mx.init.Xavier())
    parameters, states = module.get_params()
    hvd.broadcast_parameters(parameters, root_rank=0)
    hvd.broadcast_parameters(states, root_rank=0)
    module.set_params(parameters, states)
    optimizer = mx.optimizer.create(
        "sgd", learning_rate=0.1, momentum=0.9, rescale_grad=1.0 / batch
    )
    module.init_optimizer(kvstore=None, optimizer=hvd.DistributedOptimizer(optimizer))
    for _ in range(EPOCHS):
        batches.reset()
        for one in batches:
            module.forward_backward(one)
            module.update()
    guesses = module.predict(mx.io.NDArrayIter(images[test], None, batch)).asnumpy().argmax(axis=1)
    if hvd.rank() == 0:
        print(f"accuracy {np.mean(guesses == labels[test]):.3f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
