"""Records for which user code raises, where the operator has a policy for them (`api.failure_options`).

| module | subject |
|---|---|
| `policy` | the policy in one subtask: calls that are made again, records that go aside, the largest share |
| `rows` | `map`, `filter` and `flat_map` with a policy |
| `calls` | calls of process functions, whose changes are undone where they fail |
| `halving` | operators whose functions are pure by contract: a batch that fails is tried in halves |
| `spare` | records as they were before a call |
| `capsules` | what is written down of a failed call |
| `tasks` | the runtime half of an operator with its policy |

Operators without a policy know nothing of it: their first failed record fails the job.
"""
