// Checks what ropewalk publishes with golang.org/x/mod/sumdb/note and tlog, and answers as a witness.
//
//	tlog verify DIR LOG_VKEY [WITNESS_VKEY...]   checkpoint, every tile, every record, growth from every size
//	tlog proof FILE LOG_VKEY [WITNESS_VKEY...]   a c2sp.org/tlog-proof@v1
//	tlog witness NAME LOG_VKEY                   serve POST /add-checkpoint; prints address and key
package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// cosigner is a key of type 4 (tlog-cosignature), which x/mod does not know.
type cosigner struct {
	name string
	hash uint32
	key  ed25519.PublicKey
}

func keyHash(name string, typed []byte) uint32 {
	sum := sha256.Sum256(append([]byte(name+"\n"), typed...))
	return binary.BigEndian.Uint32(sum[:])
}

func newVerifier(vkey string) note.Verifier {
	parts := strings.SplitN(vkey, "+", 3)
	typed, err := base64.StdEncoding.DecodeString(parts[2])
	check(err)
	if typed[0] != 4 {
		v, err := note.NewVerifier(vkey)
		check(err)
		return v
	}
	hash, err := strconv.ParseUint(parts[1], 16, 32)
	check(err)
	if uint32(hash) != keyHash(parts[0], typed) {
		check(fmt.Errorf("wrong key id in %s", vkey))
	}
	return cosigner{parts[0], uint32(hash), ed25519.PublicKey(typed[1:])}
}

func (c cosigner) Name() string    { return c.name }
func (c cosigner) KeyHash() uint32 { return c.hash }
func (c cosigner) Verify(msg, sig []byte) bool {
	if len(sig) != 72 {
		return false
	}
	t := binary.BigEndian.Uint64(sig)
	return ed25519.Verify(c.key, []byte(fmt.Sprintf("cosignature/v1\ntime %d\n%s", t, msg)), sig[8:])
}

// open returns the tree of a checkpoint that every given key has signed.
func open(raw []byte, vkeys []string) (string, tlog.Tree) {
	var verifiers []note.Verifier
	for _, vkey := range vkeys {
		verifiers = append(verifiers, newVerifier(vkey))
	}
	n, err := note.Open(raw, note.VerifierList(verifiers...))
	check(err)
	if len(n.Sigs) != len(vkeys) {
		check(fmt.Errorf("%d of %d keys have signed", len(n.Sigs), len(vkeys)))
	}
	lines := strings.Split(n.Text, "\n")
	size, err := strconv.ParseInt(lines[1], 10, 64)
	check(err)
	root, err := tlog.ParseHash(lines[2])
	check(err)
	return lines[0], tlog.Tree{N: size, Hash: root}
}

// published reads tiles under their C2SP names, which do not hold the height.
type published string

func (p published) Height() int { return 8 }
func (p published) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	var out [][]byte
	for _, tile := range tiles {
		name := strings.Replace(tile.Path(), "tile/8/", "tile/", 1)
		raw, err := os.ReadFile(filepath.Join(string(p), name))
		if err != nil {
			return nil, err
		}
		out = append(out, raw)
	}
	return out, nil
}
func (p published) SaveTiles([]tlog.Tile, [][]byte) {}

func verify(dir string, vkeys []string) {
	raw, err := os.ReadFile(filepath.Join(dir, "checkpoint"))
	check(err)
	origin, tree := open(raw, vkeys)
	reader := tlog.TileHashReader(tree, published(dir))
	var leaves []tlog.Hash
	for tile := int64(0); tile*256 < tree.N; tile++ {
		path := tlog.Tile{H: 8, L: 0, N: tile, W: int(min(256, tree.N-tile*256))}.Path()
		entries, err := os.ReadFile(filepath.Join(dir, strings.Replace(path, "tile/8/0/", "tile/entries/", 1)))
		check(err)
		for len(entries) > 0 {
			end := 2 + int(binary.BigEndian.Uint16(entries))
			leaves = append(leaves, tlog.RecordHash(entries[2:end]))
			entries = entries[end:]
		}
	}
	if int64(len(leaves)) != tree.N {
		check(fmt.Errorf("%d entries, not %d", len(leaves), tree.N))
	}
	for n, leaf := range leaves {
		proof, err := tlog.ProveRecord(tree.N, int64(n), reader)
		check(err)
		check(tlog.CheckRecord(proof, tree.N, tree.Hash, int64(n), leaf))
	}
	for old := int64(1); old <= tree.N; old++ {
		root, err := tlog.TreeHash(old, reader)
		check(err)
		proof, err := tlog.ProveTree(tree.N, old, reader)
		check(err)
		check(tlog.CheckTree(proof, tree.N, tree.Hash, old, root))
	}
	fmt.Printf("ok %s %d\n", origin, tree.N)
}

func min(a, b int64) int64 {
	if a < b {
		return a
	}
	return b
}

func hashes(lines []string) []tlog.Hash {
	var out []tlog.Hash
	for _, line := range lines {
		hash, err := tlog.ParseHash(line)
		check(err)
		out = append(out, hash)
	}
	return out
}

// proof checks the block header of a proof file; the way from the envelope to it is ropewalk's own.
func proof(file string, vkeys []string) {
	raw, err := os.ReadFile(file)
	check(err)
	parts := bytes.SplitN(raw, []byte("\n\n"), 2)
	lines := strings.Split(string(parts[0]), "\n")
	extra, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(lines[1], "extra "))
	check(err)
	// The header is JCS inside JCS: its bytes stand in the line as they were hashed.
	start := bytes.Index(extra, []byte(`"header":`)) + len(`"header":`)
	end := start + bytes.Index(extra[start:], []byte(`},`)) + 1
	index, err := strconv.ParseInt(strings.TrimPrefix(lines[2], "index "), 10, 64)
	check(err)
	_, tree := open(parts[1], vkeys)
	path := tlog.RecordProof(hashes(lines[3:]))
	check(tlog.CheckRecord(path, tree.N, tree.Hash, index, tlog.RecordHash(extra[start:end])))
	fmt.Printf("ok %d of %d\n", index, tree.N)
}

func witness(name, vkey string) {
	public, private, err := ed25519.GenerateKey(nil)
	check(err)
	typed := append([]byte{4}, public...)
	hash := keyHash(name, typed)
	seen, lock := tlog.Tree{}, sync.Mutex{}
	http.HandleFunc("/add-checkpoint", func(w http.ResponseWriter, r *http.Request) {
		lock.Lock()
		defer lock.Unlock()
		raw, _ := io.ReadAll(r.Body)
		parts := bytes.SplitN(raw, []byte("\n\n"), 2)
		lines := strings.Split(string(parts[0]), "\n")
		old, err := strconv.ParseInt(strings.TrimPrefix(lines[0], "old "), 10, 64)
		check(err)
		n, err := note.Open(parts[1], note.VerifierList(newVerifier(vkey)))
		if err != nil {
			w.WriteHeader(403)
			return
		}
		if old != seen.N {
			w.Header().Set("Content-Type", "text/x.tlog.size")
			w.WriteHeader(409)
			fmt.Fprintf(w, "%d\n", seen.N)
			return
		}
		_, tree := open(parts[1], []string{vkey})
		if old > 0 && tlog.CheckTree(tlog.TreeProof(hashes(lines[1:])), tree.N, tree.Hash, old, seen.Hash) != nil {
			w.WriteHeader(422)
			return
		}
		seen = tree
		now := time.Now().Unix()
		sig := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, hash), uint64(now))
		sig = append(sig, ed25519.Sign(private, []byte(fmt.Sprintf("cosignature/v1\ntime %d\n%s", now, n.Text)))...)
		fmt.Fprintf(w, "\u2014 %s %s\n", name, base64.StdEncoding.EncodeToString(sig))
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	fmt.Printf("http://%s=%s+%08x+%s\n", listener.Addr(), name, hash, base64.StdEncoding.EncodeToString(typed))
	check(http.Serve(listener, nil))
}

func main() {
	switch os.Args[1] {
	case "verify":
		verify(os.Args[2], os.Args[3:])
	case "proof":
		proof(os.Args[2], os.Args[3:])
	case "witness":
		witness(os.Args[2], os.Args[3])
	}
}
