"""The classic non-local methods of the paper's general framework: array in, array out."""

from nlrn.classic.bm3d import denoise_bm3d
from nlrn.classic.lssc import denoise_lssc
from nlrn.classic.nlm import denoise_nlm
from nlrn.classic.wnnm import denoise_wnnm

__all__ = ["denoise_bm3d", "denoise_lssc", "denoise_nlm", "denoise_wnnm"]
