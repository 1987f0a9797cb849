//! Who is in the job: how ranks find each other.
