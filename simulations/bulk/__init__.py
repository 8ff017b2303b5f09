"""The bulk lane of the simulator: ordinary samples and questions of many devices decided at once, by numpy.

`boundaries`: where the production core's decision changes, found by asking it. `tariff`: what one ordinary question
leaves in a report, measured on the full path. `draws`: conditions of many questions. `hub_timeline`: when a hub has
each stored, computed and answered. `windows`: when and where faults are near. `resting_state`: what bulk questions
change of devices. `tally`: what is counted when its time has come. `lane`: which samples are ordinary; all others go
the full path.

Rule: the lane decides only what the production core decided when it was asked, and one sample in 500 is decided by
both.
"""
