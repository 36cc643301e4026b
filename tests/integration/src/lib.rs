//! The tests stand in `tests/`, because they run csi-cloud and csi-edge as programs.
//! Their drivers break on demand.
