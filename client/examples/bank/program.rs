use fatbtree::{Bytes, Client, Error, Structure};

/// Cents of an account, if it is there.
fn cents(value: Option<Bytes>) -> Option<u64> {
    Some(u64::from_le_bytes(value?[..].try_into().ok()?))
}

/// Moves money, if both accounts are there and the first one has enough. Says whether it did.
async fn transfer(bank: &Client, from: u64, to: u64, sum: u64) -> Result<bool, Error> {
    let moved = bank.transact(async |tx| {
        let (a, b) = (cents(tx.get_for_update(from).await?), cents(tx.get_for_update(to).await?));
        let (Some(a), Some(b)) = (a, b) else { return Ok(false) };
        let Some(rest) = a.checked_sub(sum) else { return Ok(false) };
        tx.put(from, rest.to_le_bytes()).await?;
        tx.put(to, (b + sum).to_le_bytes()).await?;
        Ok(true)
    });
    moved.await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let file = std::env::args().nth(1).unwrap_or("cluster.toml".to_owned());
    let options = fatbtree::Options::new(file).structure(Structure::Dtx);
    let bank = options.connect().await?;
    for account in [1, 2] {
        bank.put(account, 100_u64.to_le_bytes()).await?;
    }
    assert!(transfer(&bank, 1, 2, 70).await?);
    assert!(!transfer(&bank, 1, 2, 70).await?, "there are 30 left");

    // The same by hand: a conflict is an error, and all that was read is certain after the commit.
    let mut tx = bank.begin().await?;
    let (one, two) = (cents(tx.get(1).await?), cents(tx.get(2).await?));
    tx.commit().await?;
    println!("accounts 1 and 2 have {one:?} and {two:?} cents");
    bank.close().await;
    Ok(())
}
