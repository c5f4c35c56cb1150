"""The paper's tables: run any method on any of them, with the published figures beside ours.

`tables` says what a table is made of, `methods` what can stand in it, `run` measures image by
image, `report` renders tables, `documents` writes them into README and docs.
"""
