//! The tests are in `tests/`: csi-cloud and csi-edge as programs, against drivers that break.
