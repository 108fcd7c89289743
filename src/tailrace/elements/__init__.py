"""The elements of a channel: batches in two forms, markers between them, frames on the wire; and the keys,
values and times in them.

- `batches`, `markers`, `cuts`: records, what is sent between them, and the request for a cut. `frame_codec`: all of these as
  bytes.
- `rows`: the records of a DataFrame. `columns`: the one place where values become columns, and columns other columns.
  `convert`: the name that pickles have for the maker of a row.
- `keys`: the canonical form of a key and its hash. `keygroups`, `keycolumns`, `intkeys`: key groups of many keys at once.
  `keyclasses`, `keypickling`: classes whose objects are keys, and keys in checkpoints. `plainkeys`: keys of dictionaries.
  `keyslots`, `slottables`: numbers for the keys of a column.
- `valueclasses`, `valuepickling`, `defaults`: classes of values, and how the next version of a program reads them.
  `pickling`: advice where pickle refuses. `valuedigests`: hashes by which two executions are compared.
- `timestamps`, `durations`, `calendars`: times, spans as users give them, and windows of the calendar of a zone.
- `entrylog`, `spills`: a log that is partly in memory, and the contract of the place for the rest.
- `callables`: checks of user functions. `byte_texts`, `texttables`: sizes and tables as text.
"""
