"""hangdoc's tests, by what they need.

unit        one module each
replay      recordings, logs and dumps of past jobs, judged again by today's rules
live        real training jobs, with the job scripts in live/jobs
            live/fleet: several hosts over ssh, Slurm, kubectl;  live/hostile: targets that attack hangdoc
data        recordings, samples of stacks and logs, and what each reproducer must get (data/expected)
support     what tests share: testbeds, synthetic evidence, processes to look at; support/programs run on their own
tools       `make matrix`, `make calm`, `make fuzz`, and what records new data
benchmarks  `make bench`

`make test` runs unit, replay and a selection of live; `make test-live` runs the rest.
"""
