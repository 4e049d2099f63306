"""Functions over a target's source text. They run in `hangdoc.system.sandbox` and import only the standard library.

They answer in plain lists; `hangdoc.introspect.source_files` asks, `hangdoc.introspect.source_records` makes records.
"""
