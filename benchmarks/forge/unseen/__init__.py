"""Data sets that the forge was not made with: two tables of Debian's package index, motion and speech.

Each module is what a user would bring: `samples()` and `build_model()`, a plain net that a plain script trains.

Rule: nothing here is downloaded. The package index is what apt has on this machine (`apt-cache dumpavail`; facts and
one-line descriptions, each under its package's licence); speech is spoken by espeak-ng (GPL-3.0-or-later; a synthesiser
of formants, no recorded voice); motion is simulated. Public recordings of motion and of speech cannot be had from where
the project is built, so these two are no evidence of what people's movements and voices would give.
"""
