"""What the tests share: jobs, testbeds, evidence made by hand, and real processes to look at."""
