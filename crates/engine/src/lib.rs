//! Drives: takes requests, agrees with peers, runs schedules over links.
