"""The shipping of a job to executors: its plan, the functions of the user, and packages that executors lack.

- `plan_files`: plan and functions as bytes and files. `program`: what the user has defined in `__main__`.
- `parcel`: an archive with what executors may lack. `delivery`: a Spark job that brings it, and runs again.
- `arrival`, `executor`, `modules`: what runs first in a process of an executor.
- `executors`: what an executor lacks, as a sentence with the remedy.
"""
