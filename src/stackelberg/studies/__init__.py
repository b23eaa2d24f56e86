"""Studies: methods × tasks × settings × seeds from one file, run anywhere, kept in one folder.

`Study.load` reads one, `Study.cells()` are its runs, `Store` keeps what has become of them.
"""
