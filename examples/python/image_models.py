"""Networks for images in Keras, by the names that tf_cnn_benchmarks gives them.

Owns the models of `tensorflow_benchmark.py`: four come from `keras.applications`, without weights; AlexNet (in the form
of "One weird trick",
2014) and GoogLeNet (Inception v1, 2014, without its auxiliary classifiers) are written out, because Keras has neither.
      All give logits of 1,000 classes or as many as are asked for, and each has the side of the images that it was made
      for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import keras
from keras import layers


@dataclass(frozen=True)
class ImageModel:
    """How a model is built, and for what images it was made."""

    side: int
    build: Callable[[int, int], keras.Model]


def _application(name: str) -> Callable[[int, int], keras.Model]:
    def build(side: int, classes: int) -> keras.Model:
        constructor = getattr(keras.applications, name)
        return constructor(weights=None, input_shape=(side, side, 3), classes=classes, classifier_activation=None)

    return build


def alexnet(side: int, classes: int) -> keras.Model:
    """Five convolutions and three dense layers; 62 million parameters for images of 227 by 227."""
    image = keras.Input((side, side, 3))
    x = layers.Conv2D(64, 11, strides=4, activation="relu")(image)
    x = layers.MaxPooling2D(3, strides=2)(x)
    x = layers.Conv2D(192, 5, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(3, strides=2)(x)
    for channels in (384, 384, 256):
        x = layers.Conv2D(channels, 3, padding="same", activation="relu")(x)
    x = layers.Flatten()(layers.MaxPooling2D(3, strides=2)(x))
    for _ in range(2):
        x = layers.Dropout(0.5)(layers.Dense(4096, activation="relu")(x))
    return keras.Model(image, layers.Dense(classes)(x), name="alexnet")


#: For each inception module of GoogLeNet the channels of its convolutions: 1x1; 3x3 and what comes before; 5x5 and
#: what comes before; after pooling. `None` is a pooling between modules.
_GOOGLENET = [
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
]


def googlenet(side: int, classes: int) -> keras.Model:
    """Three convolutions, nine inception modules, one dense layer; 7 million parameters."""

    def convolution(x: keras.KerasTensor, channels: int, kernel: int, strides: int = 1) -> keras.KerasTensor:
        return layers.Conv2D(channels, kernel, strides=strides, padding="same", activation="relu")(x)

    def pooling(x: keras.KerasTensor, strides: int) -> keras.KerasTensor:
        return layers.MaxPooling2D(3, strides=strides, padding="same")(x)

    image = keras.Input((side, side, 3))
    x = pooling(convolution(image, 64, 7, strides=2), 2)
    x = pooling(convolution(convolution(x, 64, 1), 192, 3), 2)
    for widths in _GOOGLENET:
        if widths is None:
            x = pooling(x, 2)
            continue
        one, before_three, three, before_five, five, pooled = widths
        columns = [
            convolution(x, one, 1),
            convolution(convolution(x, before_three, 1), three, 3),
            convolution(convolution(x, before_five, 1), five, 5),
            convolution(pooling(x, 1), pooled, 1),
        ]
        x = layers.Concatenate()(columns)
    x = layers.Dropout(0.4)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(image, layers.Dense(classes)(x), name="googlenet")


#: By the names of tf_cnn_benchmarks.
MODELS = {
    "resnet50": ImageModel(224, _application("ResNet50")),
    "inception3": ImageModel(299, _application("InceptionV3")),
    "vgg16": ImageModel(224, _application("VGG16")),
    "alexnet": ImageModel(227, alexnet),
    "googlenet": ImageModel(224, googlenet),
    "mobilenet": ImageModel(224, _application("MobileNetV2")),
}
