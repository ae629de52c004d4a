// Prints the addresses of a name, as c-ares finds them, once those of the C library are the same.
const dns = require("dns").promises;

async function main(name) {
  const [lookup, v4, v6] = await Promise.all([
    dns.lookup(name, { all: true }),
    dns.resolve4(name),
    dns.resolve6(name),
  ]);
  const all = [...v4, ...v6].sort();
  const other = lookup.map((it) => it.address).sort();
  if (all.join() !== other.join()) throw new Error(`lookup: ${other}, resolve: ${all}`);
  console.log(all.join("\n"));
}

main(process.argv[2]).catch((error) => {
  console.error(String(error));
  process.exit(1);
});
