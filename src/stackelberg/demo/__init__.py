"""The demo: a small made-up task, a small encoder, and a study of five methods on them.

`begin` makes its folder, `study_of` says what is run there, `comparison` what came of it.
"""
