mod missing;
mod seeds;
