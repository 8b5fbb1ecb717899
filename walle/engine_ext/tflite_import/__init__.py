"""TFLite models as `.walle` models: float32 convolutional networks of one image. Needs NumPy.

Supported are ADD of equal shapes, AVERAGE_POOL_2D over the whole image, CONCATENATION and SOFTMAX of what is not an
image, CONV_2D, DEPTHWISE_CONV_2D, MAX_POOL_2D, PAD, PRELU with a slope for each channel, RESHAPE to what is not an
image, RESIZE_BILINEAR with half_pixel_centers, and DEQUANTIZE of float16 constants. Anything else is an error that
names the operator. An image [1, height, width, channels] becomes [1, channels, height, width], as input and as output.
"""
