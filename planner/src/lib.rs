//! ats-plan: lowering, profile, placement, transfer schedules, simulation, reports.
