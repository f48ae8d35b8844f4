// prove.mjs make CURVE DIGEST_HEX FOLDER: set up a key in FOLDER and print {verification_key, proof, publicSignals}
// prove.mjs verify: read {verification_key, proof, public_inputs} from stdin and print true or false
import fs from "node:fs"
import path from "node:path"
import { execFileSync } from "node:child_process"
import { fileURLToPath } from "node:url"
import * as snarkjs from "snarkjs"

const here = path.dirname(fileURLToPath(import.meta.url))
const [act, curve, digest, folder] = process.argv.slice(2)
if (act === "verify") {
  const said = JSON.parse(fs.readFileSync(0, "utf8"))
  const holds = await snarkjs.groth16.verify(said.verification_key, said.public_inputs, said.proof)
  process.stdout.write(JSON.stringify(holds), () => process.exit(0))
} else {
  const at = (name) => path.join(folder, name)
  const tool = path.join(here, "node_modules", ".bin", "circom2")
  execFileSync(tool, ["bind.circom", "--r1cs", "--wasm", "--prime", curve, "-o", folder], { cwd: here, stdio: "ignore" })
  await snarkjs.powersOfTau.newAccumulator(await snarkjs.curves.getCurveFromName(curve), 6, at("0.ptau"))
  await snarkjs.powersOfTau.contribute(at("0.ptau"), at("1.ptau"), "test", "test")
  await snarkjs.powersOfTau.preparePhase2(at("1.ptau"), at("2.ptau"))
  await snarkjs.zKey.newZKey(at("bind.r1cs"), at("2.ptau"), at("0.zkey"))
  await snarkjs.zKey.contribute(at("0.zkey"), at("1.zkey"), "test", "test")
  const verification_key = await snarkjs.zKey.exportVerificationKey(at("1.zkey"))
  const hi = BigInt("0x" + digest.slice(0, 32))
  const lo = BigInt("0x" + digest.slice(32))
  const inputs = { hi, lo, n: 91n, a: 7n, b: 13n }
  const made = await snarkjs.groth16.fullProve(inputs, at("bind_js/bind.wasm"), at("1.zkey"))
  const said = JSON.stringify({ verification_key, ...made }, (_, v) => (typeof v === "bigint" ? `${v}` : v))
  process.stdout.write(said, () => process.exit(0))
}
