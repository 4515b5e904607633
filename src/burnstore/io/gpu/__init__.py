"""The transfer of bytes to a GPU: plan chunks, read them into pinned staging buffers, copy them on one stream."""
