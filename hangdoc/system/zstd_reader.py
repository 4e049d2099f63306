"""The content of a zstd file, also of one that is still written or was cut off."""

from __future__ import annotations

from typing import IO

_PIECE = 2**7  # bytes unpacked at a time, into 4 MiB at most; damage costs the whole piece


class ZstdReader:
    """Reads a zstd file once, from the beginning.

    zstandard's own `stream_reader` (0.25) loses the end of an unfinished frame that does not fit into its last chunk:
    the newest lines of a recording whose writer was killed.
    """

    def __init__(self, file: IO[bytes]) -> None:
        from zstandard import ZstdDecompressor

        self._file = file
        self._unpacker = ZstdDecompressor(max_window_size=2**27).decompressobj(read_across_frames=True)
        self._ready = bytearray()
        self._damage: Exception | None = None

    def read1(self, size: int) -> bytes:
        """The next bytes, at most `size`; none at the end. Raises ZstdError at damage, after all that precedes it."""
        from zstandard import ZstdError

        while len(self._ready) < size and self._damage is None and (piece := self._file.read(_PIECE)):
            try:
                self._ready += self._unpacker.decompress(piece)
            except ZstdError as error:
                self._damage = error
        if self._damage is not None and not self._ready:
            raise self._damage
        chunk = bytes(self._ready[:size])
        del self._ready[:size]
        return chunk
