"""Quantized weights: tensors of a file whose numbers mean nothing without other tensors, read with their meaning.

Publishers store weights in 8 and 4 bits with scales beside them. `recognize` finds such tensors in the contents of a
SafeTensors, PyTorch or NumPy file and makes one tensor of each set: it has the name, shape and dtype of the weight, a
`scheme` that names its parts, and values that are decoded when they are read. A copy writes the parts unchanged.

    scheme               parts, beside or instead of ``m.weight``                                   values
    FP8, INT8            weight, weight_scale_inv or weight_scale or scale [, weight_zero_point]     q * s, (q - z) * s
    FP4 (int8 bytes)     weight, the same scales in blocks of 1x32 or 1x16                           two per byte
    compressed-tensors   weight_packed, weight_scale, weight_shape [, weight_zero_point, weight_g_idx]  (q - z) * s
    NVFP4                weight_packed, weight_scale, weight_global_scale (compressed-tensors)       q * (s / g)
                         weight, weight_scale, weight_scale_2 (ModelOpt)                             q * (s * g)
    MXFP4                P_blocks, P_scales (gpt-oss, transposed: P is [experts, in, out])           q * 2^(s - 127)
                         weight_packed, weight_scale of U8 (compressed-tensors)
    GPTQ, AWQ            qweight, qzeros, scales [, g_idx]; transposed, AWQ's columns interleaved     (q - z) * s
    bitsandbytes         weight, weight.absmax, weight.quant_map, weight.quant_state.* (NF4, FP4)    map[q] * absmax
                         weight, SCB (INT8)                                                          q * SCB / 127
    torchao              _weight_qdata, _weight_scale [, _weight_zero_point], metadata of the file   (q - z) * s

``quantization_config`` of a ``config.json`` beside the file decides the method, the bits and the size of blocks; a
copy keeps it in the metadata (``burnstore.quantization``). Without one, names, shapes and dtypes are the evidence.

The arithmetic is that of transformers and of the schemes' libraries: products in float32, rounded once to the dtype of
the scales; scales of 8 bits give BF16.

The rules. Errors and tests cite them.

    QW-01  Scales fit the shape: one, one per row, or a grid of blocks in which the last blocks may be cropped.
    QW-02  What the evidence leaves open is refused when the tensor is read: two kinds of scales, two sizes of blocks
           that fit, GPTQ's zero points of unknown version. The file opens, and ``inspect`` shows the tensor.
    QW-03  A tensor of FP8 without a scale is refused when it is read, if others in the file have one or the
           configuration states FP8: its scale may be in another file. In a file without any scale FP8 numbers are
           plain numbers, which is noted for weights.
    QW-04  The parts agree in their shapes; bits are 1 to 8; a size that a part states is inside the limits.
    QW-05  ``activation_scale``, ``input_scale`` and their kin are tensors of their own: no weight depends on them.
    QW-06  Any module may have a ``scale``. Without a configuration it is that of the ``weight`` beside it only if this
           has 8 bits and at least two axes, QW-01 holds, and there are fewer scales than numbers; otherwise both
           are plain tensors.
"""

from __future__ import annotations

from .recognize import recognize

__all__ = ["recognize"]
