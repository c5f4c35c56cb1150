"""Blind estimates of the noise of an image: its level, its kind, and a map of it."""

from nlrn.noise.level import NoiseEstimate as NoiseEstimate
from nlrn.noise.level import estimate_noise as estimate_noise
from nlrn.noise.level import estimate_sigma as estimate_sigma
from nlrn.noise.level_map import estimate_map as estimate_map
from nlrn.noise.tone import Tone as Tone
from nlrn.noise.tone import tone_of as tone_of
