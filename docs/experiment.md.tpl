# The question that this began with

A team split its proving API so that one multi-scalar multiplication runs in a background thread. At 12 partition
workers the prover then ran out of memory on a machine of 755 GiB. Was it a leak, a ceiling, or memory held longer?
`ci/experiment` asks that again, small, and answers it from what was measured.

`proverd` (`fixtures/proverd`) is the prover of the fixtures as a daemon: jobs of partitions come over HTTP, all their
partitions pass through one pipeline, and a line tells of each partition, job and wave that is done. Its
configurations are those of then:

| configuration | API | permit to synthesise given back | channel has room for | a, b, c freed |
|---|---|---|---|---|
| `p11-int10`, `-int12` | one call | when the channel has taken the partition | 2 | when proved |
| `p12-int10`, `-int12`, `-int15` | split | when it is synthesised, before it is sent | 2 | when finished |
| `p12-fixed-int10`, `-int12`, `-int15` | split | when the channel has taken it | as many as there are workers | when proving has begun |

**In proportion.** The limit leaves room for as many finished partitions beside the idle prover as the original had:
(755 − 70) / 16 = 42.8. A partition is half a MiB here and was 16 GiB there. Synthesis takes 0.3 s in all of them, however
many cores there are. The original's vectors are larger than malloc's threshold for mappings can become, so
`MALLOC_MMAP_THRESHOLD_` is scaled down as well; without that, what arenas keep would hide what workers take. The limit is
enforced from samples, which count what the prediction is made of, and not by a cgroup, which counts the kernel's
memory for the process too.

What it printed on 2 cores (which others used at the same time):

```text
OUTPUT
```

Each sentence is a claim that the program checks against the runs; where one does not hold it fails and says which.

- That nothing leaks is shown under a load that p12 survives, on the partitions' own blocks: for each partition, phase
  and layer the releases are compared with the allocations, in every wave but the last, whose memory threads may still
  be freeing when the daemon ends.
- The backlog is judged from the books that the killed process left behind: more finished partitions waited than the
  channel and the workers have room for, and live memory follows their number.
- The parts of the difference add up to the byte; [decision 10](decisions/0010-how-two-versions-are-compared.md) says how
  they are made.
- The largest safe number of workers is predicted from three smaller ones, and then it and the next one are run.
