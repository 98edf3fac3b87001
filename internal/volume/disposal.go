package volume

// Disposal says what happens to a volume that is no longer wanted, as its class had it.
// It is kept in the volume's tags, because the class may be gone by then.
type Disposal struct {
	Reclaim Reclaim
	Wipe    Wipe
}
