"""Tables: run any method on the paper's or the everyday ones, with others' figures beside ours.

`tables` says what a table is made of, `methods` what can stand in it, `run` measures image by
image, `report` renders tables, `documents` writes them into README and docs. `ablations` has the
paper's comparisons of trained variants, `curves` draws them.
"""
