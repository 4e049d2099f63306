"""What is a secret, and how it is masked: in text, on command lines, in records. No process or file is read here."""
