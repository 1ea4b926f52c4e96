//! The `aiprof` binary.
fn main() {
    match aiprof::collect::bpf::Bpf::load(&Default::default(), None) { Ok(_) => println!("loaded"), Err(e) => println!("{:?}", e) }
}
