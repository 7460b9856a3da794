"""Trains a transformer that is split over three process sets: it reads digits and spells them.

    horoscalerun -np 6 python examples/tensorflow_partitioned_transformer.py --check

One set of ranks holds copies of the embedding, one of the encoder, and one of the decoder with the
output layer. The n-th ranks of the three sets form a column, and each column processes its share of
every batch. Rows of the image go from the embedding to the encoder, and the encoder's output to the
decoder, which spells the digit's name letter by letter. Gradients return the same way. In each set
a DistributedOptimizer averages the gradients over the columns.

The result is that of one process with the whole model and the whole batch; --check trains it this
way and compares the losses. The number of ranks must be a multiple of three.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import horoscale.tensorflow as hvd

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ALPHABET = ">" + "".join(sorted({" ", *"".join(WORDS)}))  # ">" begins a word
ROWS, LETTERS, WIDTH = 8, 5, 32

Batch = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


# ---------------------------------------------------------------- the model, in three parts


class Positions(layers.Layer):
    """Adds position embeddings."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.table = self.add_weight(shape=shape[1:], initializer="random_normal")

    def call(self, sequence: tf.Tensor) -> tf.Tensor:
        return sequence + self.table


def attend(sequence: tf.Tensor, memory: tf.Tensor | None = None, **options: bool) -> tf.Tensor:
    """Return the attention of a sequence to `memory`, or to itself."""
    queries = layers.LayerNormalization()(sequence)
    attention = layers.MultiHeadAttention(num_heads=4, key_dim=WIDTH // 4)
    return sequence + attention(queries, queries if memory is None else memory, **options)


def feed_forward(sequence: tf.Tensor) -> tf.Tensor:
    hidden = layers.Dense(2 * WIDTH, activation="gelu")(layers.LayerNormalization()(sequence))
    return sequence + layers.Dense(WIDTH)(hidden)


def make_embedding() -> keras.Model:
    rows = keras.Input((ROWS, 8))
    letters = keras.Input((LETTERS,), dtype="int32")
    source = Positions()(layers.Dense(WIDTH)(rows))
    target = Positions()(layers.Embedding(len(ALPHABET), WIDTH)(letters))
    return keras.Model([rows, letters], [source, target])


def make_encoder() -> keras.Model:
    source = keras.Input((ROWS, WIDTH))
    hidden = source
    for _ in range(2):
        hidden = feed_forward(attend(hidden))
    return keras.Model(source, layers.LayerNormalization()(hidden))


def make_decoder() -> keras.Model:
    target, memory = keras.Input((LETTERS, WIDTH)), keras.Input((ROWS, WIDTH))
    hidden = attend(target, use_causal_mask=True)
    hidden = feed_forward(attend(hidden, memory))
    scores = layers.Dense(len(ALPHABET))(layers.LayerNormalization()(hidden))
    return keras.Model([target, memory], scores)


PARTS = {"embedding": make_embedding, "encoder": make_encoder, "decoder": make_decoder}


def make_part(name: str) -> keras.Model:
    """Return a part of the model, with the same initial values on all ranks."""
    keras.utils.set_random_seed(list(PARTS).index(name))
    return PARTS[name]()


def make_optimizer(steps: int) -> keras.optimizers.Optimizer:
    rate = keras.optimizers.schedules.CosineDecay(0.003, steps)
    return keras.optimizers.AdamW(rate, weight_decay=0.3)


# ---------------------------------------------------------------- the ranks and their links


class Link:
    """A process set of two ranks: activations go from one to the other, and gradients back."""

    def __init__(self, name: str, sender: int, receiver: int) -> None:
        self.name, self.sender, self.receiver = name, sender, receiver
        self.process_set = hvd.ProcessSet([sender, receiver])

    def forward(self, activations: tf.Tensor) -> tf.Tensor:
        """Return the sender's activations on both ranks. The receiver passes a tensor like them."""
        return hvd.broadcast(activations, self.sender, name=self.name, process_set=self.process_set)

    def backward(self, gradients: tf.Tensor) -> tf.Tensor:
        """Return the receiver's gradients on both ranks. The sender passes a tensor like them."""
        return hvd.broadcast(
            gradients, self.receiver, name=f"{self.name}.grad", process_set=self.process_set
        )


class Layout:
    """The role of each rank: the lower third embeds, the middle one encodes, the upper one decodes.

    All ranks create all process sets, because all of them register each set.
    """

    def __init__(self, size: int) -> None:
        if size % 3 != 0:
            raise SystemExit(f"{size} ranks can't be dealt out to three sets of equal size")
        self.columns = size // 3
        embedders, encoders, decoders = np.arange(size).reshape(3, self.columns).tolist()
        self.sets = {
            name: hvd.ProcessSet(ranks)
            for name, ranks in zip(PARTS, (embedders, encoders, decoders), strict=True)
        }
        self.rows = [Link("rows", *pair) for pair in zip(embedders, encoders, strict=True)]
        self.letters = [Link("letters", *pair) for pair in zip(embedders, decoders, strict=True)]
        self.memory = [Link("memory", *pair) for pair in zip(encoders, decoders, strict=True)]

    def register(self) -> None:
        links = [*self.rows, *self.letters, *self.memory]
        for process_set in [*self.sets.values(), *(link.process_set for link in links)]:
            hvd.add_process_set(process_set)

    def own_part(self) -> str:
        return next(name for name, ranks in self.sets.items() if ranks.included())

    def own_column(self) -> int:
        return hvd.rank() % self.columns


# ---------------------------------------------------------------- a training step of each part


def make_step(layout: Layout, part: keras.Model, steps: int) -> Callable[..., tf.Tensor | None]:
    """Return a function that runs this rank's part of some training steps, on its share."""
    name, column = layout.own_part(), layout.own_column()
    own_set = layout.sets[name]
    rows, letters, memory = layout.rows[column], layout.letters[column], layout.memory[column]
    variables = part.trainable_variables
    optimizer = hvd.DistributedOptimizer(make_optimizer(steps), process_set=own_set)
    optimizer.build(variables)

    def embed(images: tf.Tensor, spelled: tf.Tensor, wanted: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            source, target = part([images, spelled])
        rows.forward(source)
        letters.forward(target)
        from_above = [rows.backward(source), letters.backward(target)]
        gradients = tape.gradient([source, target], variables, from_above)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def encode(images: tf.Tensor, spelled: tf.Tensor, wanted: tf.Tensor) -> None:
        source = rows.forward(room_for(images, ROWS))
        with tf.GradientTape() as tape:
            tape.watch(source)
            encoded = part(source)
        memory.forward(encoded)
        from_above = memory.backward(encoded)
        of_source, *gradients = tape.gradient(encoded, [source, *variables], from_above)
        rows.backward(of_source)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def decode(images: tf.Tensor, spelled: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
        target = letters.forward(room_for(spelled, LETTERS))
        encoded = memory.forward(room_for(spelled, ROWS))
        with tf.GradientTape() as tape:
            tape.watch([target, encoded])
            loss = loss_of(wanted, part([target, encoded]))
        of_target, of_encoded, *gradients = tape.gradient(loss, [target, encoded, *variables])
        letters.backward(of_target)
        memory.backward(of_encoded)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return hvd.allreduce(loss, process_set=own_set)  # the average of the columns

    return tf.function({"embedding": embed, "encoder": encode, "decoder": decode}[name])


def room_for(samples: tf.Tensor, length: int) -> tf.Tensor:
    """Return a tensor with the shape of the samples' sequences in another set."""
    return tf.zeros([len(samples), length, WIDTH], tf.float64)


def loss_of(wanted: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """Return the mean over samples and letters."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, scores))


# ---------------------------------------------------------------- data, and the whole model


def load_data() -> list[np.ndarray]:
    """Return training and held-out images, and the digits that they show."""
    images, digits = load_digits(return_X_y=True)
    images = images.reshape(-1, ROWS, 8) / 16.0
    return train_test_split(images, digits, test_size=0.2, random_state=0, stratify=digits)


def spell(digits: np.ndarray) -> np.ndarray:
    """Return the numbers of the letters of the digits' names, padded with blanks."""
    words = [[ALPHABET.index(letter) for letter in word.ljust(LETTERS)] for word in WORDS]
    return np.array(words, "int32")[digits]


def batches(images: np.ndarray, digits: np.ndarray, size: int, epoch: int) -> Iterator[Batch]:
    """Yield images, the letters before each letter, and the letters; the same on all ranks."""
    order = np.random.default_rng(epoch).permutation(len(images))
    for chosen in order[: len(order) - len(order) % size].reshape(-1, size):
        wanted = spell(digits[chosen])
        yield images[chosen], np.insert(wanted[:, :-1], 0, ALPHABET.index(">"), axis=1), wanted


class WholeModel:
    """The three parts in one process."""

    def __init__(self) -> None:
        self.parts = {name: make_part(name) for name in PARTS}

    def scores(self, images: np.ndarray, spelled: np.ndarray) -> tf.Tensor:
        source, target = self.parts["embedding"]([images, spelled])
        return self.parts["decoder"]([target, self.parts["encoder"](source)])

    def accuracy(self, images: np.ndarray, digits: np.ndarray) -> float:
        """Return the fraction of names spelled correctly, one letter after the other."""
        spelled = np.full((len(images), LETTERS + 1), ALPHABET.index(">"), "int32")
        for i in range(LETTERS):
            spelled[:, i + 1] = np.argmax(self.scores(images, spelled[:, :-1])[:, i], axis=-1)
        return float(np.mean(np.all(spelled[:, 1:] == spell(digits), axis=1)))

    def train(self, images: np.ndarray, digits: np.ndarray, epochs: int, size: int) -> float:
        """Train on all ranks; return the last loss."""
        variables = [one for part in self.parts.values() for one in part.trainable_variables]
        optimizer = make_optimizer(epochs * (len(images) // size))
        optimizer.build(variables)

        @tf.function
        def step(images: tf.Tensor, spelled: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_of(wanted, self.scores(images, spelled))
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        for epoch in range(epochs):
            for batch in batches(images, digits, size, epoch):
                loss = step(*map(tf.constant, batch))
        return float(loss)


def train_in_sets(
    layout: Layout,
    model: WholeModel,
    images: np.ndarray,
    digits: np.ndarray,
    epochs: int,
    size: int,
) -> float:
    """Train the model's parts, each in its set; return the last loss."""
    part, column = model.parts[layout.own_part()], layout.own_column()
    step = make_step(layout, part, epochs * (len(images) // size))
    first_decoder = layout.sets["decoder"].ranks[0]
    for epoch in range(epochs):
        for batch in batches(images, digits, size, epoch):
            loss = step(*(tf.constant(one[column :: layout.columns]) for one in batch))
        if hvd.rank() == first_decoder:
            print(f"epoch {epoch}: loss {float(loss):.4f}", flush=True)

    # Only the ranks of a set have trained its part.
    for name, trained in model.parts.items():
        hvd.broadcast_variables(trained.variables, root_rank=layout.sets[name].ranks[0])
    return float(hvd.broadcast_object(loss, root_rank=first_decoder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=36, help="samples per step, of all columns")
    parser.add_argument("--check", action="store_true", help="compare with one process")
    arguments = parser.parse_args()

    hvd.init(process_sets="dynamic")
    layout = Layout(hvd.size())
    layout.register()
    if arguments.batch % layout.columns != 0:
        raise SystemExit(f"--batch {arguments.batch} does not divide by {layout.columns} columns")
    keras.config.set_dtype_policy("float64")  # so that --check detects small errors
    train_images, test_images, train_digits, test_digits = load_data()
    training = (train_images, train_digits, arguments.epochs, arguments.batch)

    model = WholeModel()
    loss = train_in_sets(layout, model, *training)
    if hvd.rank() == 0:
        print(f"accuracy on held-out digits: {model.accuracy(test_images, test_digits):.4f}")
        if arguments.check:
            alone = WholeModel().train(*training)
            print(f"last loss {loss:.10f}, of one process {alone:.10f}")
            if not np.isclose(loss, alone, rtol=1e-5):
                raise SystemExit("the ranks' result is not that of one process")


if __name__ == "__main__":
    main()
