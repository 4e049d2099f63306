"""One rank by itself and beside its peers: call path, phase, CPU, progress, where its path diverges."""
