"""The shipping of a job to executors: its plan, the functions of the user, and packages that executors lack.

In: a plan with the functions of the user, and what an executor reports that it lacks. Out: bytes and archives, and on the
executor the plan and the modules that it needs.

- `plan_files`: plan and functions as bytes and files. `program`: what the user has defined in `__main__`.
- `parcel`: an archive with what executors may lack. `delivery`: a Spark job that brings it, and runs again.
- `arrival`, `executor_id`, `modules`: what runs first in a process of an executor.
- `spark_tasks`: functions as Spark tasks on executors that may lack tailrace. `missing_modules`: what an executor lacks, as
  a sentence with the remedy.
"""
