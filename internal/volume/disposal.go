package volume

// Disposal is what happens to a volume that is no longer wanted, as its class specified. It is kept
// in the volume's tags, because the class may be gone when the volume is removed.
type Disposal struct {
	Reclaim Reclaim
	Wipe    Wipe
}
