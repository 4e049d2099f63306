"""Data that a rank reads and writes: dataloader workers, waits for batches, storage, data paths.

Connections between ranks belong to `network`.
"""
