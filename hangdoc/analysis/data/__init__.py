"""What a rank reads and writes: dataloader workers, input, storage, paths of the data."""
