"""The workers of a job: which process has which slot, and what happens when one is lost.

In: processes that join, signs of life, links that close, ends of Spark jobs, reports on histories. Out: requests for
processes, messages to workers, and causes of failure for `course`.

- `roster`: slots, epochs, signs of life. `places`: the Spark jobs that run processes. `silence`: which worker is
  declared lost because no sign of life comes.
- `standbys`, `standby_placement`: processes that wait, and the slices whose state each of them holds.
- `replacements`, `replacement_phases`: a lost worker is replaced while the other workers go on: whether it is, and how far
  each replacement has come, with what is known of the lost one. Which standby takes its slot: `Standbys.choose`.
- `first_failures`: workers that are replaced though they live. `hot_standbys`: which standby follows which worker.
- `rescaling`: another number of workers while the job runs; its steps are in `coordinator.course`. `readiness`: how far
  these are before the job stands still. `autoscaling`: how many workers the load requires.
- `moves`: workers whose machines are about to go.
- `replacement_durations`: the result of each loss, for users.
"""
